"""TensorBoard event files, one run a service, written without torch."""

import shutil
from pathlib import Path
from typing import Any

from services.monitor.gathering import Point


class TensorBoardRecord:
    """Writes the whole record anew below `directory`: what an earlier monitor wrote there is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, Any] = {}
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    def write(self, points: list[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            summary = Summary(value=[Summary.Value(tag=point.name, simple_value=point.value)])
            self._writer(point.service).add_event(Event(wall_time=point.at, step=point.step, summary=summary))

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, service: str) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if service not in self._writers:
            self._writers[service] = EventFileWriter(str(self._directory / service))
        return self._writers[service]
