"""`StrategySteps`: what Keras's loops call in a `kl.Model`, under every strategy."""

import keras
import tensorflow as tf

from keras_largeout._keras import LoopHooks, is_built
from keras_largeout.distribute.cluster.dispatch import dispatcher_of
from keras_largeout.distribute.cluster.steps import COMPOSITE, Predictions, Steps, tensors
from keras_largeout.distribute.cluster.worker_data import ChiefFedDataset, worker_data_of
from keras_largeout.distribute.hosts.multi_worker import SyncStrategy
from keras_largeout.replicas._tensorflow import stop_before_data_goes
from keras_largeout.replicas.host_fed import HostFed
from keras_largeout.replicas.hosts import hosts_of


class StrategySteps(LoopHooks):
    """A base that must precede `keras.Model`: the strategy of a model, and the functions of its steps.

    On a parameter server cluster, `make_train_function` returns a function that hands the step to a worker,
    and the metrics of an epoch wait until all steps are done.
    """

    active_steps = None  # the `Steps` that may have steps in flight
    _predicts = False  # while `predict` runs
    _ahead_of_predict = None  # while `predict` runs: from its batches to those with their answers

    @property
    def _strategy(self):
        """The strategy in whose scope the model was made or is used; None where there is none."""
        strategy = super().distribute_strategy
        alone = strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy()
        return None if alone else strategy

    @property
    def _cluster_strategy(self):
        strategy = self._strategy
        return strategy if isinstance(strategy, tf.distribute.ParameterServerStrategy) else None

    @property
    def distribute_strategy(self):
        """The strategy in whose scope the model was made."""
        cluster, strategy = self._cluster_strategy, super().distribute_strategy
        if cluster is not None:
            return ChiefFedDataset(cluster, self._ahead_of_predict)
        if not hosts_of(strategy).is_alone:
            return SyncStrategy(strategy, self._predicts)
        gpus = self._strategy is not None and tf.config.list_logical_devices("GPU")
        return HostFed(strategy) if gpus else strategy

    @property
    def _hosts(self):
        """The `Hosts` that train the model."""
        return hosts_of(super().distribute_strategy)

    @property
    def _replicas(self):
        return super().distribute_strategy.num_replicas_in_sync

    @property
    def may_choose_steps(self):
        """True on one machine: workers take what the chief says, and hosts the same steps."""
        return self._cluster_strategy is None and self._hosts.is_alone

    def make_train_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_train_function(force or isinstance(self.train_function, Steps))
        self._check_runs_graphs()
        if force or not isinstance(self.train_function, Steps):
            self.train_function = Steps(self, self.train_step, self._cluster_strategy, trains=True)
        return self.train_function

    def make_test_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_test_function(force or isinstance(self.test_function, Steps))
        self._check_runs_graphs()
        if force or not isinstance(self.test_function, Steps):
            self.test_function = Steps(self, self.test_step, self._cluster_strategy, trains=False)
        return self.test_function

    def make_predict_function(self, force=False):
        if self._cluster_strategy is None:
            return super().make_predict_function(force or isinstance(self.predict_function, Predictions))
        if force or not isinstance(self.predict_function, Predictions):
            self.predict_function = Predictions(self, self._cluster_strategy)
        return self.predict_function

    def reset_metrics(self):
        super().reset_metrics()
        for steps in (self.train_function, self.test_function):
            if isinstance(steps, Steps):
                steps.totals.clear()

    def after_last_step(self, logs):
        if self.active_steps is not None:
            steps, self.active_steps = self.active_steps, None
            logs = steps.finish()
        return logs

    def before_first_step(self, iterator, data_batch, build):
        strategy = self._strategy
        if strategy is not None and is_built(self):  # a batch takes longer to come than this to find out
            return
        if strategy is not None and iterator is not None:
            for _, _, batches in iterator:
                stop_before_data_goes(batches)
                data_batch = next(batches)
                break
            data = worker_data_of(data_batch)
            if data is not None:
                data_batch = data[0].symbolic_batch()
            iterator = None
            parts = [strategy.experimental_local_results(part)[0] for part in keras.tree.flatten(data_batch)]
            if any(isinstance(part, COMPOSITE) for part in parts):
                self._build_by_tracing(strategy, data_batch)
                return
            data_batch = keras.tree.pack_sequence_as(data_batch, parts)
        build(iterator=iterator, data_batch=data_batch)

    def _build_by_tracing(self, strategy, batch):
        """Build the model by tracing a step: Keras's symbolic batches cannot be ragged or sparse."""
        with strategy.scope():
            if self._cluster_strategy is not None:
                tf.function(self.test_step, autograph=False).get_concrete_function(tensors(batch))
            else:
                step = tf.function(lambda batch: strategy.run(self.test_step, (batch,)), autograph=False)
                step.get_concrete_function(batch)
            if self.optimizer is not None and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    def wait_for_steps(self):
        """Waits until no worker has a step in flight: before weights are read or changed."""
        if self.active_steps is not None and self._cluster_strategy is not None:
            dispatcher_of(self._cluster_strategy).join()

    def _check_runs_graphs(self):
        if self.run_eagerly:
            raise ValueError(
                "`run_eagerly` must be False under a ParameterServerStrategy: workers run graphs. "
                f"Received: run_eagerly={self.run_eagerly}"
            )
