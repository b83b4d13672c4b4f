"""Weight versions and their announcement. A version is ordered first by the trainer's incarnation."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.message import Message, Value


class WeightVersion(Value):
    """The weights after `version` trainer steps, made by one incarnation of the trainer.

    A resumed trainer has a higher incarnation, so its versions supersede those of its dead predecessor.
    """

    incarnation: int = Field(default=0, ge=0)
    version: int = Field(default=0, ge=0)

    def supersedes(self, other: "WeightVersion") -> bool:
        return (self.incarnation, self.version) > (other.incarnation, other.version)

    def satisfies(self, floor: "WeightVersion") -> bool:
        """Whether a task that asks for at least `floor` may be sampled with these weights."""
        return self.version >= floor.version or self.incarnation > floor.incarnation


class FileDigest(Value):
    """One file of a weight directory."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class WeightsAnnounced(Message):
    """Weights that are complete on disk and may be loaded. Carries the manifest, never a tensor.

    Where `is_adapter`, they are a low-rank adapter in PEFT's layout, to be added to the model that the run began from.
    """

    schema_name: ClassVar[str] = "weights_announced"

    run: str
    weights: WeightVersion
    method: Literal["checkpoint", "memory", "nccl", "tinker"] = "checkpoint"
    uri: str
    files: tuple[FileDigest, ...]
    dtype: str
    step_ended_at: float
    announced_at: float
    is_final: bool = False
    is_adapter: bool = False
