#!/usr/bin/env python3
"""Goldens of trainer_state.json, as transformers' TrainerState writes it (run from the repository's root).

    python3 tools/golden/trainer_state.py      # needs transformers; last run with 5.24.0
"""
import pathlib

from transformers.trainer_callback import TrainerControl, TrainerState

OUT = pathlib.Path("tests/golden/trainer_state")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    log = [{"loss": 2.5, "grad_norm": 1.25, "learning_rate": 0.0, "epoch": 0.125, "step": 1},
           {"loss": 0.1, "grad_norm": 1e-7, "learning_rate": 2e-4, "epoch": 0.25, "step": 2},
           {"eval_loss": 1.0 / 3.0, "epoch": 0.25, "step": 2}]
    state = TrainerState(epoch=0.25, global_step=2, max_steps=8, logging_steps=1, eval_steps=2, save_steps=2, train_batch_size=4,
                         num_train_epochs=1, num_input_tokens_seen=1234, total_flos=5.5e12, log_history=log, best_metric=1.0 / 3.0,
                         best_global_step=2, best_model_checkpoint="runs/caf\u00e9/checkpoint-2", stateful_callbacks=[TrainerControl(should_save=True)])
    state.save_to_json(OUT / "trainer_state.json")
    state.log_history[1]["grad_norm"] = float("nan")
    state.log_history[1]["tokens"] = 7
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None
    (OUT / "nan").mkdir(exist_ok=True)
    state.save_to_json(OUT / "nan/trainer_state.json")


main()
