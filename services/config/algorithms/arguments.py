"""The base of the arguments that a part of an algorithm takes: `*_args` of the configuration, checked and complete."""

from collections.abc import Mapping
from typing import Any

from services.config.section import Section


class Arguments(Section):
    """Arguments of one part. The fields' defaults are the part's defaults, and are written nowhere else."""

    @classmethod
    def covering(cls, layer: Mapping[str, Any]) -> dict[str, Any]:
        """What one layer of arguments says, with None for what it takes away from the layers below it."""
        return dict(layer)

    def complete(self) -> dict[str, Any]:
        """All arguments with their values."""
        return self.model_dump()
