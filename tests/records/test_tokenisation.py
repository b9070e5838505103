"""The record of a tokenising job holds its own parts only."""

import pytest

from tlm_repro.errors import ArtifactError
from tlm_repro.records.tokenisation import TokenisationJob

CONTENT = {"job": 1, "jobs": 3, "parts": [1, 4], "beyond": [7, 10]}


def test_it_is_written_and_read_back(tmp_path):
    record = TokenisationJob.create(CONTENT)
    record.write(tmp_path / "job-1-of-3.json")
    assert TokenisationJob.read(tmp_path / "job-1-of-3.json") == record
    assert record.content() == CONTENT


@pytest.mark.parametrize(("key", "value"), [("parts", [1, 5]), ("beyond", [6]), ("job", 2), ("jobs", 2)])
def test_parts_of_another_job_are_refused(tmp_path, key, value):
    path = tmp_path / "job.json"
    record = TokenisationJob.model_validate({**CONTENT, key: value})
    record.write(path)
    with pytest.raises(ArtifactError, match=r"job\.json: (parts|beyond)\.\d"):
        TokenisationJob.read(path)
