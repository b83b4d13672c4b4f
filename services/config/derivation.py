"""What follows from a configuration, step by step: `trinity check --explain`."""

from collections.abc import Iterable, Iterator

from services.config.algorithms.choice import part_of
from services.config.algorithms.parts import ADVANTAGES, POLICY_LOSSES
from services.config.allocation import allocation, auxiliary_memory_share, memory_share
from services.config.explain import shown
from services.config.keys import get
from services.config.load import Loaded
from services.config.micro_batches import data_ranks, epochs, is_dynamic, micro_batch_size, token_budget
from services.config.schedule import critic_schedule, policy_schedule, schedule_steps
from services.config.show import explain_sizes
from services.config.tree import RunConfig
from services.config.verl.tree import Role, place_of, said

Line = tuple[str, str]
INDENT = "  "
MODELS_OF: dict[Role, str] = {"actor": "policy", "critic": "critic", "reference": "reference"}


def explain(loaded: Loaded) -> str:
    """The derivation in sections of lines, what is said before what follows from it."""
    config = loaded.config
    sections: list[tuple[str, Iterable[str]]] = [("run", explain_sizes(config))]
    if config.mode in ("both", "train"):
        sections += [
            ("optimizer step", _aligned(_step(config))),
            ("learning rate", _aligned(_schedules(config))),
            ("handed to veRL", _aligned(_of_verl(config))),
        ]
    sections += [
        ("pace", _aligned(_pace(config))),
        ("GPUs", explain_gpus(config) or ["none: cluster.gpu_per_node is 0, so everything runs on the CPU"]),
        ("derived keys", _aligned(_derived(loaded))),
        ("notes", loaded.notes),
    ]
    return "\n".join(_section(title, list(lines)) for title, lines in sections if list(lines))


def explain_gpus(config: RunConfig) -> list[str]:
    """Who has which GPU, a line for each engine and for the trainer on each node; none on the CPU."""
    found = allocation(config)
    if not config.cluster.gpus:
        return []
    lines = list(_engines(config))
    for node, ranks in found.ranks_of_nodes.items():
        gpus = [gpu for at, gpu in found.trainer if at == node]
        lines.append((f"trainer, {ranks} ranks", f"node {node}: GPU {_numbers(gpus)}"))
    total, trainer = config.cluster.gpus, len(found.trainer)
    nodes = max(1, config.cluster.node_num)
    lines.append(("in all", f"{nodes} * {config.cluster.gpu_per_node} = {total} GPUs, {trainer} of them the trainer's"))
    if len(found.ranks_of_nodes) > 1:
        lines += [("Ray", words) for words in _ray(found.ranks_of_nodes, config)]
    return _aligned(lines)


def _engines(config: RunConfig) -> Iterator[Line]:
    found, explorer = allocation(config), config.explorer
    share = f"{memory_share(config):g} of the memory each"
    for number, gpus in enumerate(found.rollout):
        shares = ", shared with the evaluator" if number == 0 and config.eval_tasksets else ""
        place = f"node {gpus[0][0]}: GPU {_numbers([gpu for _, gpu in gpus])}" if gpus else "no place"
        yield f"rollout engine {number + 1} of {len(found.rollout)}", f"{place}{shares} ({share})"
    for model, engines in zip(explorer.auxiliary_models, found.auxiliary, strict=False):
        share = f"{auxiliary_memory_share(config, model):g} of the memory each"
        for number, gpus in enumerate(engines):
            place = f"node {gpus[0][0]}: GPU {_numbers([gpu for _, gpu in gpus])} ({share})" if gpus else "an address"
            yield f"{model.known_as} {number + 1} of {len(engines)}", place


def _ray(ranks_of_nodes: dict[int, int], config: RunConfig) -> Iterator[str]:
    """How the trainer gets GPUs of several nodes."""
    head = next(iter(ranks_of_nodes))
    for node in ranks_of_nodes:
        gpus = _numbers([gpu for at, gpu in allocation(config).trainer if at == node])
        how = "--head" if node == head else f"--address=HOST_OF_NODE_{head}:6379"
        yield f"before the run, on node {node}: CUDA_VISIBLE_DEVICES={gpus.replace(', ', ',')} ray start {how}"
    yield f"on node {head}, where the trainer is started: export RAY_ADDRESS=HOST_OF_NODE_{head}:6379"


def _step(config: RunConfig) -> Iterator[Line]:
    ranks, shared = config.trainer_ranks, config.trainer.ulysses_sequence_parallel_size
    made = "a GPU each" if config.cluster.gpus else "cluster.trainer_ranks, or 1"
    yield "ranks", f"{ranks} ({made})"
    if shared > 1:
        yield "data ranks", f"{ranks} / ulysses_sequence_parallel_size {shared} = {data_ranks(config)}"
    yield "on each rank", _on_each_rank(config)
    for role in _roles(config):
        yield f"{MODELS_OF[role]} micro-batch", _micro_batch(config, role)
        if epochs(config, role) > 1:
            yield f"{MODELS_OF[role]} updates", f"{epochs(config, role)} in a step, on all its experiences (ppo_epochs)"
    yield "clipping", f"gradients of a norm above {config.trainer.grad_clip:g} (trainer.grad_clip)"


def _on_each_rank(config: RunConfig) -> str:
    size, ranks = config.train_batch_size, data_ranks(config)
    each = -(-size // ranks)
    silent = each * ranks - size
    filled = f"; {silent} copies without a loss fill up the last" if silent else ""
    by = ", spread by their lengths (trainer.balance_batch)" if config.trainer.balance_batch and ranks > 1 else ""
    return f"train_batch_size {size} / {ranks} = {each} experiences{by}{filled}"


def _micro_batch(config: RunConfig, role: Role) -> str:
    each = -(-config.train_batch_size // data_ranks(config))
    if not is_dynamic(config, role):
        most = min(micro_batch_size(config, role), each)
        parts = -(-each // most)
        return f"at most {most} sequences, so {parts} in a step, summed up before the update"
    tokens = token_budget(config, role) * config.trainer.ulysses_sequence_parallel_size
    whole = max(1, tokens // max(1, config.max_model_len))
    parts = -(-each // whole)
    of_all = (
        f"max_model_len {config.max_model_len} leaves room for {whole} of full length, so at most {parts} in a step"
    )
    if tokens < config.max_model_len:
        of_all = "a longer sequence has a micro-batch of its own"
    return f"at most {tokens} tokens (max_token_len_per_gpu); {of_all}"


def _roles(config: RunConfig) -> list[Role]:
    """The models that the algorithm has."""
    algorithm = config.algorithm
    estimator, loss = (
        ADVANTAGES.get(part_of(config, "advantage_fn")),
        POLICY_LOSSES.get(part_of(config, "policy_loss_fn")),
    )
    terms = ((algorithm.kl_loss_fn, algorithm.kl_loss_fn_args), (algorithm.kl_penalty_fn, algorithm.kl_penalty_fn_args))
    has_kl = any(name not in (None, "none") and (given or {}).get("kl_coef") for name, given in terms)
    roles: list[Role] = ["actor"]
    if estimator is not None and "values" in estimator.reads:
        roles.append("critic")
    if has_kl or (loss is not None and "ref_logprob" in loss.reads):
        roles.append("reference")
    return roles


def _schedules(config: RunConfig) -> Iterator[Line]:
    total = schedule_steps(config)
    yield "policy", policy_schedule(config).words(total)
    if "critic" in _roles(config):
        yield "critic", critic_schedule(config).words(total)
        if config.trainer.critic_warmup:
            yield "alone", f"the critic, in the first {config.trainer.critic_warmup} steps (trainer.critic_warmup)"
    if config.algorithm.optimizer.total_training_steps:
        yield "steps", f"{total} (algorithm.optimizer.total_training_steps)"
    elif total is not None:
        yield "steps", f"{total} (total_steps)"
    else:
        yield "steps", f"total_epochs {config.buffer.total_epochs} of the rows, counted when the run starts"


def _of_verl(config: RunConfig) -> Iterator[Line]:
    """What `trainer.trainer_config` says beyond our keys."""
    unread = [] if "reference" in _roles(config) else [place_of("reference")]
    unread += [] if "critic" in _roles(config) else [place_of("critic")]
    for each in said(config):
        if each.fate == "verl" and not each.key.startswith(tuple(unread)):
            written = "" if each.written == each.key else f" ({each.written})"
            yield each.key, f"{shown(each.value)}{written}"


def _pace(config: RunConfig) -> Iterator[Line]:
    every = config.synchronizer.sync_interval
    yield "version v", f"the weights after optimizer step v; announced at each multiple of {every} (sync_interval)"
    if config.mode in ("both", "explore") and config.synchronizer.sync_style == "fixed":
        offset = config.synchronizer.sync_offset
        waits = f"for version {every} * floor((s - {offset}) / {every}), where s steps come before it"
        yield "a batch waits", f"{waits} (sync_interval, sync_offset)"
    if config.eval_tasksets:
        yield "evaluated", f"each {config.eval_interval}th version (explorer.eval_interval)"
    if config.trainer.save_interval:
        yield "checkpoint", f"every {config.trainer.save_interval} steps (trainer.save_interval), and at the end"
    else:
        yield "checkpoint", "at the end (trainer.save_interval 0)"


def _derived(loaded: Loaded) -> Iterator[Line]:
    tree = loaded.config.model_dump()
    for key, origin in loaded.origins.items():
        if origin.startswith("derived: "):
            yield f"{key} = {shown(get(tree, key))}", origin.removeprefix("derived: ")


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"{INDENT}{line}" for line in lines), ""])


def _aligned(lines: Iterable[Line]) -> list[str]:
    found = list(lines)
    width = min(60, max((len(what) for what, _ in found), default=0))
    return [f"{what:<{width}}  {how}" for what, how in found]


def _numbers(gpus: list[int]) -> str:
    """`0-3` for GPUs in a row, `0, 2` otherwise."""
    if len(gpus) > 2 and gpus == list(range(gpus[0], gpus[-1] + 1)):
        return f"{gpus[0]}-{gpus[-1]}"
    return ", ".join(map(str, gpus))
