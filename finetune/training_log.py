"""What a user sees of training: a bar, and a line a log step; and the history of it for the report."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm
from transformers import ProgressCallback

from finetune.forecast import correction, dollars, mfu


class ProgressLines(ProgressCallback):
    """A bar, and above it one line a log step. Also keeps the history for the report.

    `planned` is the plan's estimate of the time (Plan.time), which the second line corrects: the first has what is
    done only once. `spent` tells the seconds of the whole run so far, which is what is paid for.
    """

    def __init__(self, planned: Mapping[str, Any] | None = None, spent: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self.planned, self.spent = planned, spent
        self.corrected = False
        self.history: list[dict[str, float]] = []
        self.tokens = 0.0
        self._begun = self._since = time.monotonic()
        self._first_step = 0

    def go_on(self, history: Sequence[Mapping[str, float]], tokens: float) -> None:
        """Go on from what an earlier start kept: its history, and the tokens that it was trained on."""
        self.history, self.tokens = [dict(entry) for entry in history], tokens

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun = self._since = time.monotonic()
        self._first_step = self.current_step = state.global_step
        if state.is_world_process_zero:
            # disable=None: no bar where stderr is a file or a log collector; the lines say it all
            self.training_bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="train",
                unit="step",
                disable=None,
                dynamic_ncols=True,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        control.should_log |= state.global_step >= state.max_steps  # the last steps count as well

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        now, first = time.monotonic(), state.global_step == self._first_step + 1
        before = self._since
        tokens = logs.get("num_tokens", 0.0)
        rate = (tokens - self.tokens) / max(now - self._since, 1e-9)
        self.tokens, self._since = tokens, now
        entry = {
            "step": state.global_step,
            "epoch": logs.get("epoch", 0.0),
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm", 0.0),
            "tokens_per_second": rate,
        }
        self.history.append(entry)
        a_step = (now - self._begun) / (state.global_step - self._first_step)
        left = a_step * (state.max_steps - state.global_step)
        used, cost = mfu(self.planned, rate), dollars(self.planned, self.spent())
        line = (
            f"step {state.global_step}/{state.max_steps}  loss {entry['loss']:.4f}  lr {entry['learning_rate']:.2e}"
            f"  grad-norm {entry['grad_norm']:.3g}  {rate:,.0f} tokens/s"
            + (f"  MFU {used:.1%}" if used is not None else "")
            + f"  {tqdm.format_interval(left)} left"
            + (f"  ${cost:,.2f} so far" if cost is not None else "")
        )
        self.training_bar.write(line, file=sys.stderr)
        if not first and not self.corrected:
            self.corrected = True
            steady = (now - before) / (state.global_step - self.history[-2]["step"] if len(self.history) > 1 else 1)
            said = correction(self.planned, steady, state.max_steps)
            if said:
                self.training_bar.write(f"  {said}", file=sys.stderr)
