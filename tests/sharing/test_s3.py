"""Weights through a server that speaks S3, on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from products import another_run, product


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {"ACCESS_KEY_ID": "t", "SECRET_ACCESS_KEY": "t", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_weights_travel_through_s3(clone: Path, server: str, run):
    import boto3

    boto3.client("s3", endpoint_url=server).create_bucket(Bucket="lab")
    run(clone, "dvc pull pretrain")
    run(clone, "dvc remote modify weights url s3://lab/tlm-repro")
    run(clone, f"dvc remote modify weights endpointurl {server}")
    name = product(clone / "results", another_run()).parent.name
    output = run(clone, "tlm-repro publish --all pretrain")
    assert "pretrain: 1 added, 4 already published" in output
    keys = boto3.client("s3", endpoint_url=server).list_objects_v2(Bucket="lab")["KeyCount"]
    assert f"sent {keys} files" in output
    run(clone, "git commit -qam s3")
    run(clone.parent, "git clone -q colleague third")
    third = clone.parent / "third"
    run(third, f"dvc pull results/models/{name}")
    assert [path.name for path in (third / "results/models").iterdir()] == [name]
    assert "1 intact" in run(third, "tlm-repro verify pretrain")
