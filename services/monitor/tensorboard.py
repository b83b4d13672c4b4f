"""TensorBoard event files, one run a service, written without torch."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.monitor.record import Entry


class TensorBoardRecord:
    """Writes the whole record anew below `directory`: what an earlier monitor wrote there is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, Any] = {}

    @property
    def shown(self) -> str:
        return str(self._directory)

    def open(self) -> int:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        return 0

    def write(self, entries: Sequence[Entry]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for entry in entries:
            writer = self._writer(entry.service)
            for name, value in entry.values.items():
                summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
                writer.add_event(Event(wall_time=entry.at, step=entry.step, summary=summary))
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _writer(self, service: str) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if service not in self._writers:
            self._writers[service] = EventFileWriter(str(self._directory / service))
        return self._writers[service]
