"""Reading a configuration: YAML or plain values in, a checked `Config` out. All problems are named before any job."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tlm_repro.config.checks import problems
from tlm_repro.config.messages import explain, failure
from tlm_repro.config.schema import Config
from tlm_repro.errors import ConfigError
from tlm_repro.spec.run import FLAT_KEYS


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error. By default the last one wins silently."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def load(path: Path) -> Config:
    """Reads and checks a YAML file. Raises ConfigError naming the file, each key path, the value and the remedy."""
    return parse(read(path), str(path))


def read(path: Path) -> Any:
    """The plain values of a YAML file. Raises ConfigError when it can't be read or gives a key twice."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}): pass the path of a YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def parse(raw: Any, source: str) -> Config:
    """Checks plain values, as YAML or Snakemake give them; `source` names them in messages. Raises ConfigError."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        written = _flat_training_keys(raw)
        explained = (explain(item) for item in error.errors())
        raise failure(source, [(written.get(path, path), text) for path, text in explained]) from None
    if mistakes := list(problems(config)):
        raise failure(source, mistakes)
    return config


def _flat_training_keys(raw: Any) -> dict[str, str]:
    """Path in the schema → path in the file, of the keys that the first release had flat under `training`."""
    training = raw.get("training") if isinstance(raw, dict) else None
    given = [key for key in FLAT_KEYS if key in training] if isinstance(training, dict) else []
    return {f"training.{'.'.join(FLAT_KEYS[key])}": f"training.{key}" for key in given}
