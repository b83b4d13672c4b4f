"""What the task pipeline has made, as a file for people: whoever writes it writes the same."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from services.config.tree import RunConfig
from services.rollout.task_pipeline import write_rows
from services.rollout.tasksets import Taskset

log = structlog.get_logger()


def write_output(config: RunConfig, tasksets: Sequence[Taskset]) -> None:
    """Write the rows that the pipeline has left to `data_processor.task_pipeline.output.path`, where that is set.

    Raises:
        OSError: it cannot be written.
    """
    pipeline = config.data_processor.task_pipeline
    if pipeline is None or pipeline.output is None or not pipeline.output.path:
        return
    path = Path(pipeline.output.path)
    piped = [taskset for taskset in tasksets if taskset.config.task_pipeline is not None]
    write_rows(path, (taskset.row(index) for taskset in piped for index in range(len(taskset))))
    log.info("task_pipeline_written", path=str(path), rows=sum(map(len, piped)))
