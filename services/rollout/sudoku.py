"""Sudoku in several turns, on the puzzles of reasoning-gym's `sudoku` (9 x 9) and `mini_sudoku` (4 x 4)."""

import json
from collections.abc import Sequence

from schemas.tasks import TaskReleased
from services.rollout.environment import Environment, Observation
from services.rollout.errors import EpisodeInvalid
from services.rollout.multi_turn import StepWiseRewardWorkflow

Board = list[list[int]]

RULES = """\
You are playing Sudoku on a board of {size} x {size} cells. Each number from 1 to {size} has to stand exactly once in \
every row, in every column and in every {block} x {block} block. 0 is an empty cell, and only empty cells can be filled.

Each turn, give at most {most} moves, one a line and nothing else, as
row column number
with rows and columns counted from 0. For example:
0 2 4"""


class Sudoku:
    """The board. A reply that cannot be read, or that breaks a rule, ends the game with -1; the full board with 1."""

    def __init__(self, puzzle: Sequence[Sequence[int]], *, max_steps: int, max_moves: int) -> None:
        self._board: Board = [list(map(int, row)) for row in puzzle]
        self._left = max_steps
        self._max_moves = max_moves
        if not is_valid(self._board):
            raise EpisodeInvalid(f"not a valid puzzle: {puzzle}")

    def reset(self) -> Observation:
        return self._observed(0.0, is_over=False)

    def step(self, reply: str) -> Observation:
        self._left -= 1
        moves = moves_of(reply, len(self._board), self._max_moves)
        if not moves or not all(self._filled(*move) for move in moves) or not is_valid(self._board):
            return self._observed(-1.0, is_over=True)
        is_solved = all(all(row) for row in self._board)
        return self._observed(float(is_solved), is_over=is_solved or self._left <= 0)

    def close(self) -> None:
        return

    def _filled(self, row: int, column: int, number: int) -> bool:
        if self._board[row][column]:
            return False
        self._board[row][column] = number
        return True

    def _observed(self, reward: float, *, is_over: bool) -> Observation:
        drawn = "\n".join(" ".join(map(str, row)) for row in self._board)
        empty = sum(row.count(0) for row in self._board)
        metrics = {"solved": float(reward > 0), "empty_cells": float(empty)}
        return Observation(f"The board:\n{drawn}\nTurns left: {self._left}", reward, is_over, drawn, metrics)


class SudokuWorkflow(StepWiseRewardWorkflow):
    """Each turn is an experience: -1 for a move against the rules, 1 for the solved board, 0 in between.

    Of several right solutions any is right. `workflow_args`: `max_steps` (20, turns), `max_moves_per_step` (5). The
    puzzle stands in the row, under `puzzle`, or where reasoning-gym puts it.
    """

    def environment(self, task: TaskReleased, position: int) -> Environment:
        return Sudoku(puzzle_of(task), max_steps=self.max_turns(task), max_moves=_max_moves(task))

    def system_prompt(self, task: TaskReleased) -> str | None:
        size = len(puzzle_of(task))
        return RULES.format(size=size, block=round(size**0.5), most=_max_moves(task))

    def max_turns(self, task: TaskReleased) -> int:
        return int(task.workflow_args.get("max_steps", 20))


def _max_moves(task: TaskReleased) -> int:
    return int(task.workflow_args.get("max_moves_per_step", 5))


def puzzle_of(task: TaskReleased) -> Board:
    """The puzzle of a row, 0 for an empty cell.

    Raises:
        EpisodeInvalid: the row holds none.
    """
    puzzle = task.row.get("puzzle", (task.row.get("metadata") or {}).get("puzzle"))
    board = json.loads(puzzle) if isinstance(puzzle, str) else puzzle
    if not board or any(len(row) != len(board) for row in board) or round(len(board) ** 0.5) ** 2 != len(board):
        raise EpisodeInvalid(f"row {task.task.index} of {task.task.taskset!r} holds no square board under 'puzzle'")
    return [list(map(int, row)) for row in board]


def moves_of(reply: str, size: int, most: int) -> list[tuple[int, int, int]] | None:
    """The moves of a reply, (row, column, number) a line; None where a line is none, or there are more than `most`."""
    moves: list[tuple[int, int, int]] = []
    for line in filter(None, map(str.strip, reply.strip().splitlines())):
        words = line.split()
        if len(words) != 3 or not all(word.isdecimal() for word in words):
            return None
        row, column, number = map(int, words)
        if row >= size or column >= size or not 1 <= number <= size:
            return None
        moves.append((row, column, number))
    return moves if moves and len(moves) <= most else None


def is_valid(board: Board) -> bool:
    """Whether no number stands twice in a row, a column or a block. Empty cells are no fault."""
    size = len(board)
    block = round(size**0.5)
    starts = range(0, size, block)
    units = [
        *board,
        *(list(column) for column in zip(*board, strict=True)),
        *([board[row + r][col + c] for r in range(block) for c in range(block)] for row in starts for col in starts),
    ]
    return all(len(set(filled)) == len(filled) for filled in ([cell for cell in unit if cell] for unit in units))
