"""A stream that is full of experiences which are only too young to be freed goes on once they are old enough."""

import pytest


@pytest.mark.chaos
async def test_a_full_stream_whose_experiences_grow_old_goes_on_without_another_step(start, config) -> None:
    config["buffer"] |= {"retain": "3s", "total_steps": 24}
    config["bus"]["max_experience_bytes"] = 24_000
    config["trainer"]["save_interval"] = 1
    config["explorer"]["rollout_model"]["extra_engine_args"]["delay_s_per_token"] = 0.0
    run = start(config)
    assert await run.ends() == 0
    experiences = run.summary()["experiences"]
    assert (experiences["trained"], experiences["lost"]) == (384, 0)
    assert "experience_stream_full" in (run.config.run_dir / "log" / "trainer.log").read_text()
