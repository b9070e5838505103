import pytest

from tlm_repro.errors import ConfigError
from tlm_repro.spec.execution import Execution


def test_a_command_line_brings_back_what_it_was_given():
    execution = Execution(processes=8, nodes=2, micro_batch_sequences=4, trackers=("wandb",), checkpoint_seconds=0)
    assert Execution.from_json(execution.to_json()) == execution
    assert execution.processes_per_node == 4
    assert Execution.from_json("{}") == Execution()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"processes": 3, "nodes": 2}', r"--execution: nodes: 3 processes can't be spread evenly over 2 nodes"),
        ('{"validations": 0}', r"--execution: validations: .*greater than or equal to 1 \(seen: 0\)"),
        ('{"speed": 1}', r"--execution: speed: "),
        ('{"trackers": ["mlflow"]}', r"--execution: trackers\.0: .*'tensorboard' or 'wandb'"),
        ("processes=2", r"--execution: the whole text: Invalid JSON"),
    ],
)
def test_a_mistake_is_one_line_with_its_key(text: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        Execution.from_json(text, "--execution")
    assert "\n" not in str(caught.value)
