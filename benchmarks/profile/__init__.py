"""Where the milliseconds of a training step go, as TensorFlow's profiler sees it.

Run it by `python -m benchmarks.profile CASE`. It takes the steps of the other benchmarks, ours with the Keras
layer and its optimizer. Each is timed without the profiler, then some are recorded: which op ran when, on
which thread. The time of a recorded step is divided among the ops at work, and what is left when none is:
between two ops (TensorFlow's executor), and outside of TensorFlow (Python). So the parts sum to the step.

What is not seen: phases within an op (our kernels sort ids themselves), and cycles or cache misses, for which
the processor's counters are needed. Most virtual machines have none.
"""
