"""Ctrl-C in a long call of the kernels."""

from __future__ import annotations

import pytest
from processes import run_python

CALLS = {
    "many blocks": "pack_token_lists([[1, 2, 3] * 5] * 2500)",
    "one long sentence": "pack_token_lists([[1, 2, 3] * 700])",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("method", ["hidden_states", "sentence_embeddings"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_handler_ends_a_native_call(call, method, threads):
    """The handler runs while the call does, and not only after it: how much is left is counted in processor time."""
    output = run_python(
        f"""
        import signal, time, torch, fastsal
        from fastsal.engine.packing import pack_token_lists
        from fastsal.engine.pooling import PoolingSpec
        from models_zoo import TINY
        torch.set_num_threads({threads})
        with torch.no_grad():
            fast = fastsal.accelerate(TINY["bert"](max_position_embeddings=6000, num_hidden_layers=40))
            encoder, batch = fast._fastsal.encoder(fast), {CALLS[call]}

            def run():
                if {method!r} == "hidden_states":
                    return encoder.hidden_states(batch)
                return encoder.sentence_embeddings(batch, PoolingSpec())

            start = time.process_time()
            expected = run()
            whole = time.process_time() - start

            def interrupt(*_):
                raise KeyboardInterrupt

            signal.signal(signal.SIGVTALRM, interrupt)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)  # the process's own time: no other program hastens it
            start = time.process_time()
            try:
                run()
                print("not interrupted")
            except KeyboardInterrupt:
                print(whole > 0.3, time.process_time() - start < 0.5 * whole)
            print(torch.equal(run(), expected))
        """
    )
    assert output == ["True True", "True"]


def test_a_handler_that_raises_nothing_changes_nothing():
    output = run_python(
        """
        import signal, torch, fastsal
        from models_zoo import TINY, random_batch
        seen = []
        signal.signal(signal.SIGVTALRM, lambda *_: seen.append(1))
        fast = fastsal.accelerate(TINY["albert"](max_position_embeddings=600, num_hidden_layers=40))
        lists = [[1, 2, 3] * 100] * 60
        with torch.no_grad():
            expected = fast.sentence_embeddings(lists)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.02, 0.02)
            during = fast.sentence_embeddings(lists)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            print(torch.equal(during, expected), len(seen) > 0)
        """
    )
    assert output == ["True True"]
