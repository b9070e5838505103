import json
from pathlib import Path

import yaml
from small_study import study

from tlm_repro.config.reference import reference, schema

ROOT = Path(__file__).parents[2]


FILES = [ROOT / "config.yaml", *sorted((ROOT / "config").glob("*.yaml"))]


def test_generated_files_are_in_step():
    assert (ROOT / "config/README.md").read_text() == reference(), "run `make schema`"
    assert json.loads((ROOT / "workflow/schemas/config.schema.json").read_text()) == schema(), "run `make schema`"


def test_the_schema_accepts_what_ships_and_refuses_an_unknown_key():
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    for path in FILES:
        assert validator.is_valid(json.loads(json.dumps(yaml.safe_load(path.read_text())))), path
    assert not validator.is_valid({**study(), "colour": "red"})
