"""rpc: gRPC for programs without a Kafka library. A client of the broker, by the front door."""
