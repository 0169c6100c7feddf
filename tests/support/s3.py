"""A server of S3 on this machine, with the extra `peers`."""

from contextlib import contextmanager

import pytest


@contextmanager
def s3_server():
    """The address of a server of S3 with the bucket `bucket`."""
    pytest.importorskip("dvc_s3")
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "ACCESS_KEY_ID": "me",
            "SECRET_ACCESS_KEY": "secret",
            "DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(f"AWS_{name}", value)
        server.start()
        host, port = server.get_host_and_port()
        address = f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}"
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="bucket")
        yield address
        server.stop()
