"""`trinity convert checkpoint`: the model of a checkpoint in Hugging Face format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import SetOption, loaded


class Precision(StrEnum):
    """In which the tensors are written."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Trained(StrEnum):
    """Which of a checkpoint's models."""

    ACTOR = "actor"
    CRITIC = "critic"


def checkpoint(
    into: Annotated[
        Path, typer.Option("--into", help="The directory to write, which must not be there yet.", show_default=False)
    ],
    source: Annotated[
        Path | None, typer.Argument(help="A checkpoint: `.../global_step_N`, or `.../global_step_N/actor`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="In place of SOURCE: the YAML file of the run.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --config: by default the newest in force.")] = None,
    set_: SetOption = None,
    model: Annotated[Trained, typer.Option(help="The policy, or the critic.")] = Trained.ACTOR,
    dtype: Annotated[Precision | None, typer.Option(help="By default as it was trained.")] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Of a LoRA, the adapter alone; by default it is merged.")
    ] = False,
) -> None:
    """Write the model of a checkpoint as `transformers` loads it: configuration, tokenizer, safetensors.

    Needs no GPU, whatever number of ranks the checkpoint was written by. Every file is held against the checkpoint's
    manifest before it is read.
    """
    if source is None and config is not None:
        source = _of_run(config, set_, step)
    elif source is None or config is not None:
        raise _refusal("name a checkpoint, or a run by --config, and not both")
    _convert(_of_model(source, model), into, dtype, adapter)


def _convert(directory: Path, into: Path, dtype: Precision | None, as_adapter: bool) -> None:
    import torch
    from rich.filesize import decimal

    from services.trainer.exporting import CannotExport, export
    from services.trainer.sharded import CheckpointUnreadable

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    try:
        made = export(directory, into, dtypes[dtype] if dtype else None, as_adapter)
    except (CannotExport, CheckpointUnreadable) as error:
        raise _refusal(str(error)) from error
    typer.echo(
        f"{directory.parent.name}/{directory.name}, {made.ranks} rank{'s' if made.ranks > 1 else ''}: "
        f"{made.tensors} tensors in {made.dtype}, {decimal(made.size_bytes)}, in {into}"
    )


def _of_run(config: Path, overrides: list[str] | None, step: int | None) -> Path:
    from services.trainer.checkpoints import checkpoints

    run_dir = loaded(config, overrides).config.run_dir
    found = {one.step: one.directory for one in checkpoints(run_dir)}
    if not found:
        raise _refusal(f"{run_dir} has no checkpoint")
    if step is not None and step not in found:
        raise _refusal(f"{run_dir} has no global_step_{step} in force; it has {', '.join(map(str, found))}")
    return found[max(found) if step is None else step]


def _of_model(directory: Path, model: Trained) -> Path:
    """The part of one model, where the whole was named."""
    if any(directory.glob("model_world_size_*")):
        return directory
    if not directory.is_dir():
        raise _refusal(f"{directory} is not there")
    if not (directory / model).is_dir():
        raise _refusal(f"{directory} holds no {model}: it is no checkpoint, or of an algorithm that trains none")
    return directory / model


def add_to(app: typer.Typer) -> None:
    app.command("checkpoint")(checkpoint)


def _refusal(words: str) -> typer.Exit:
    typer.echo(f"error: {words}", err=True)
    return typer.Exit(2)
