"""Which stores a configuration means, and what of stores, selectors and task pipelines is refused with the reason."""

from collections.abc import Callable

import pytest

from services.config.availability import notices, unavailable
from services.config.errors import ConfigError
from services.config.load import Loaded
from services.store.sinks import named, sinks, source

Load = Callable[..., Loaded]

BUFFER = "buffer.trainer_input.experience_buffer"
PIPELINE = "data_processor.experience_pipeline"
TASKS = "data_processor.task_pipeline"


def paths(loaded: Load, *overrides: str) -> list[str]:
    return [place.path for place in sinks(loaded(*overrides).config)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        ([f"{BUFFER}={{storage_type: queue}}"], []),
        ([f"{BUFFER}={{path: 'sqlite:///x.db'}}"], ["sqlite:///x.db"]),
        ([f"{BUFFER}={{path: x.jsonl}}", f"{PIPELINE}.output={{path: x.jsonl}}"], ["x.jsonl"]),
        (
            [f"{PIPELINE}.input_save_path=in.parquet", "buffer.explorer_output={path: out.jsonl}"],
            ["out.jsonl", "in.parquet"],
        ),
        ([f"{PIPELINE}.input_save_path=in.parquet", f"{PIPELINE}.save_input=false"], []),
        ([f"{BUFFER}={{path: x.jsonl}}", "mode=bench", "buffer.explorer_input.eval_tasksets=[{path: e.jsonl}]"], []),
    ],
)
def test_every_path_that_is_named_is_a_store_once(loaded: Load, overrides: list[str], expected: list[str]) -> None:
    assert paths(loaded, *overrides) == expected
    assert unavailable(loaded(*overrides).config) == []


def test_a_store_without_a_path_is_in_the_runs_directory(loaded: Load) -> None:
    config = loaded(f"{BUFFER}={{storage_type: sql, name: mine}}", "buffer.explorer_output={storage_type: file}").config
    assert [each.path for each in named(config)] == [
        f"sqlite:///{config.run_dir}/buffer/mine.db",
        f"{config.run_dir}/buffer/experience_buffer.jsonl",
    ]


@pytest.mark.parametrize("kind", ["sql", "file"])
def test_a_trainer_alone_reads_the_store_that_it_names_and_writes_none(loaded: Load, kind: str) -> None:
    config = loaded("mode=train", f"{BUFFER}={{storage_type: {kind}, path: 'sqlite:///old.db'}}").config
    assert (config.experience_source, config.is_whole, sinks(config)) == ("store", True, [])
    assert source(config).path == "sqlite:///old.db"


def test_on_the_side_of_the_explorers_it_is_said_who_writes_the_store(loaded: Load) -> None:
    (notice,) = notices(loaded("mode=explore", f"{BUFFER}={{path: x.jsonl}}", "bus.url=nats://h:1").config)
    assert notice == f"{BUFFER}.path=x.jsonl is written by the run's monitor: name it where the trainer is started"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            [f"{BUFFER}={{path: 'mysql://h/d'}}"],
            f"{BUFFER}.path: mysql:// is no database that experiences can be stored",
        ),
        ([f"{PIPELINE}.input_save_path=buffer"], "input_save_path: 'buffer' names no store: write sqlite:///FILE.db"),
        (["mode=train", f"{BUFFER}={{storage_type: sql}}"], "with mode=train and storage_type=sql it names the stored"),
        (
            ["mode=train", "algorithm.algorithm_type=dpo", f"{BUFFER}={{storage_type: sql, path: 'sqlite:///x.db'}}"],
            "algorithm_type=dpo learns from rows of data, not from stored experiences",
        ),
        (
            [f"{PIPELINE}.output={{path: x.jsonl}}", f"{PIPELINE}.operators=[{{name: reward_filter}}]"],
            "output with operators: operators work where batches are made",
        ),
    ],
)
def test_a_store_that_cannot_be_meant_is_refused(loaded: Load, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(*overrides)
    assert words in str(refused.value)


TASKSET = "buffer.explorer_input.taskset"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["data_selector.selector_type=easy_to_hrad"],
            "selector_type=easy_to_hrad is no selector: did you mean easy_to_hard?",
        ),
        (
            ["data_selector.selector_type=offline_easy2hard"],
            "needs feature_keys: the columns that say how easy a row is",
        ),
        (["data_selector.kwargs={tau: 1}"], "sequential takes no arguments, and tau is given"),
        (
            ["data_selector={selector_type: difficulty_based, kwargs: {lam: 0.1}}"],
            "difficulty_based has no argument lam: did you mean lamb?",
        ),
        (["data_selector={selector_type: difficulty_based, kwargs: {rho: 2}}"], "rho=2: it is what a guess is worth"),
        (["data_selector={selector_type: difficulty_based, kwargs: {do_sample: 1}}"], "do_sample=1: use true or false"),
        (["weight=0"], "weight=0 is no share of the tasks: use more than 0"),
        (
            ["task_pipeline.operators=[{name: lenght_filter}]"],
            "task_pipeline.operators[0]: 'lenght_filter' is no operator of tasks: did you mean length_filter?",
        ),
    ],
)
def test_a_taskset_that_cannot_be_meant_is_refused(loaded: Load, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(*(f"{TASKSET}.{override}" for override in overrides))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["config_path=dj.yaml"], "config_path=dj.yaml is a file of Data-Juicer, which is not available"),
        (["operators=[{name: llm_difficulty_score_filter}]"], "those of Data-Juicer are not available"),
        (["operators=[{name: deduplicate, args: {by: x}}]"], "deduplicate has no argument by: it takes fields"),
        (["top_k=0"], "top_k=0: use 1 or more, or -1 for all rows"),
        (["output={path: out.parquet}"], "output.path=out.parquet: what comes out is written as .jsonl"),
        (["inputs=[in.jsonl]", "output={path: in.jsonl}"], "output.path=in.jsonl is what the pipeline reads"),
    ],
)
def test_a_task_pipeline_that_cannot_be_done_is_refused(loaded: Load, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(*(f"{TASKS}.{override}" for override in overrides))
    assert words in str(refused.value)


def test_the_shared_pipeline_is_that_of_every_training_taskset(loaded: Load) -> None:
    config = loaded(f"{TASKS}={{operators: [{{name: not_empty, args: {{fields: [question]}}}}], top_k: 5}}").config
    (taskset,) = config.tasksets
    assert taskset.task_pipeline is not None
    assert (taskset.task_pipeline.top_k, taskset.task_pipeline.operators[0].name) == (5, "not_empty")
    assert unavailable(config) == []
