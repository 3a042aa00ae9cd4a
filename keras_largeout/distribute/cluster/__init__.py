"""Training on parameter servers: who takes part, and what `fit` does there.

```
chief:   Keras's fit ── batch ──> train_function = Steps ── closure ──> ClusterCoordinator ──> a free worker
worker:  train_step in a graph: unique ids to the servers, rows back; hidden vectors to a subtree's server
server:  gathers; the losses and gradients of its subtrees; RowUpdate in place
worker ── what the step added to each metric ──> chief: Totals ──> logs; after an epoch, the metrics
```

Keras's own loops run on the chief. They ask a model for a function of an iterator (`make_train_function`)
and, at the end of an epoch, for its metrics. The first hands the next batch to whichever worker is free
and returns at once; the second waits until all are done. So callbacks, data adapters, validation and the
progress bar are Keras's, unchanged.

- *Batches* are made on the chief and sent with the step: each is trained once per epoch, also when
  workers come and go. With a dataset function every worker reads its own; Keras's loop then counts empty
  elements that stand for the batches.
- *Metrics* have no state on the servers in a step: Keras reads, adds and writes, and two workers would
  lose what they add. A step starts them at zero (`local_state.py`) and returns what it added; the chief
  adds up. Counters of optimizers are increased by one op at the end of the step.
- *How often a step is counted.* A worker that ends before it has answered gives its step to another one,
  and what it had done of it is done twice: at most one call per killed worker. For one that ends between
  the last op and the answer, the step is counted, its metrics are not.
- *Two calls per worker* are under way: one computes, one is on its way. A thread waits for each answer,
  in no order, so a worker that stands still holds up two calls and nothing else.
- *The top of a tree* is fetched and computed by the worker: just the rows of nodes on the paths of its
  targets, so that a lazy optimizer moves the same rows as on one device.
- *Few messages.* A tensor between chief and worker is a message. The batches of a call travel stacked,
  and an answer is one vector (`packed.py`). The steps of a call are a loop in the worker's graph: with a
  dataset function and 50 steps per call, the chief needs a fifth of a millisecond per step.
- *Fewer bytes.* Rows and hidden vectors travel in bfloat16 on request
  (`replicas/exchange_dtype.py`).
- *A lost server* is found in TensorFlow's error (`errors.py`), or by a heartbeat (`server_watch.py`: now and
  then TensorFlow waits forever for a server that is gone), and raised as one `ServerLostError`.
- *A worker that stands still* for `heartbeat_timeout` is disconnected, so that its steps run on another one.
- *Files* are written to a new name and renamed, after waiting for the steps under way. The servers can write
  their own rows: `tables/server_files.py`.
"""
