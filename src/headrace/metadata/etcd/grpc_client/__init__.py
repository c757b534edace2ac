"""metadata.etcd.grpc_client: a small asyncio gRPC client over h2."""
