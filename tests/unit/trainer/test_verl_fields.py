"""The table of veRL's fields that configurations are checked against is that of the installed veRL."""

from pathlib import Path

from services.config.verl import fields as told
from services.config.verl.keys import SAME, SECTIONS
from services.config.verl.tree import Said
from services.trainer.backends.verl_fields import source


def test_the_table_is_that_of_the_installed_verl() -> None:
    assert source() == Path(told.__file__).read_text(encoding="utf-8")


def test_every_key_that_has_one_of_ours_is_a_field_of_verls() -> None:
    for key in SAME:
        assert Said(key, key, None).kind is not None, key


def test_the_sections_are_fields_themselves() -> None:
    for section in SECTIONS:
        above, _, name = section.rpartition(".")
        assert above in ("", "actor_rollout_ref") or SECTIONS[above][name] == "dict", section
