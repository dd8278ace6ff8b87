"""Write configs/schema.json, the JSON schema with which editors complete and check configurations.

python scripts/make_schema.py
"""

import json
from pathlib import Path

from diffrl.config.load import config_schema

TARGET = Path(__file__).parents[1] / "configs" / "schema.json"


def schema_text() -> str:
    """The file's content."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(schema_text(), encoding="utf-8")
    print(TARGET)
