"""The tables of a history, in plain columns: arrays are raw little-endian bytes, int32 and float32."""

import sqlalchemy as sa

metadata = sa.MetaData()

histories = sa.Table(
    "served_histories",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("history", sa.Text, nullable=False),
)

_key = sa.BigInteger().with_variant(sa.Integer, "sqlite")

messages = sa.Table(
    "served_messages",
    metadata,
    sa.Column("id", _key, primary_key=True, autoincrement=True),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("msg_id", sa.Text, nullable=False),
    sa.Column("choice", sa.Integer, nullable=False),
    sa.Column("sampled_at", sa.Float, nullable=False),
    sa.Column("prompt_text", sa.Text, nullable=False),
    sa.Column("response_text", sa.Text, nullable=False),
    sa.Column("prompt_ids", sa.LargeBinary, nullable=False),
    sa.Column("response_ids", sa.LargeBinary, nullable=False),
    sa.Column("logprobs", sa.LargeBinary, nullable=False),
    sa.Column("token_versions", sa.LargeBinary, nullable=False),
    sa.Column("incarnation", sa.Integer, nullable=False),
    sa.Column("temperature", sa.Float, nullable=False),
    sa.Column("is_truncated", sa.Boolean, nullable=False),
    sa.Column("reward", sa.Float),
    sa.Column("task_id", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("is_alone", sa.Boolean, nullable=False, default=False),
    sa.Column("judged_at", sa.Float),
    sa.Column("group_id", _key),
    sa.UniqueConstraint("run", "msg_id", "choice"),
    sa.Index("served_messages_by_task", "run", "task_id"),
    sa.Index("served_messages_by_group", "group_id"),
)
"""One row a choice. `task_id`, `run_id` and `reward` are of its last feedback; `group_id` once it is committed."""

groups = sa.Table(
    "served_groups",
    metadata,
    sa.Column("id", _key, primary_key=True, autoincrement=True),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text, nullable=False),
    sa.Column("committed_at", sa.Float, nullable=False),
    sa.Column("ordinal", sa.BigInteger),
    sa.Column("published_at", sa.Float),
    sa.UniqueConstraint("run", "ordinal"),
)
"""One row a committed group: `ordinal` is the task that it answers, once it has one."""
