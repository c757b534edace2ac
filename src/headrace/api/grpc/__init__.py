"""api.grpc: the gRPC server. The stubs are in headrace.rpc."""
