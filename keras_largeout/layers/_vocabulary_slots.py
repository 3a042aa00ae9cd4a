"""`VocabularySlots`: the slots that a vocabulary has for ids, in its weights. A row belongs to each slot."""

import weakref

import numpy as np
import tensorflow as tf

from keras_largeout.files.verified_loading import may_have_other_rows, verify
from keras_largeout.layers._saved_state import LayerState, NotSaved, SavedVariables
from keras_largeout.ops._gradients import colocated_with
from keras_largeout.ops.export_mode import is_exporting
from keras_largeout.ops.vocabulary.reference import EMPTY
from keras_largeout.ops.vocabulary.stock import stock_find
from keras_largeout.ops.vocabulary.wrapper import find, update
from keras_largeout.replicas.collectives import AllGather
from keras_largeout.replicas.cross_replica import several_replicas
from keras_largeout.replicas.devices import least_loaded_server, on_servers, plain_variable, replica_index
from keras_largeout.replicas.hosts import hosts_of
from keras_largeout.replicas.plain_weight import PlainWeight
from keras_largeout.tables.storage.places import check_loaded_size

# A block of the sketch has 64 counters of a byte, 16 for each row of this many.
_ROWS_PER_BLOCK = 4
_STEP_BITS = 0xFFFFFFFF  # of a score: the step in which the id came last


class VocabularySlots(LayerState):
    """A base of `DynamicVocabulary`: the id in each slot, how often it came and when, and its string.

    A subclass has `capacity`, `admit_after`, `evict`, `keep_strings`, and `first_row`: the row of slot 0.
    """

    _state: dict[str, PlainWeight]  # by names in files; empty before `build`

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._state, self._resets, self._moved = {}, [], None

    def build(self, input_shape=None):
        if self.built:
            return
        blocks = -(-self.capacity // _ROWS_PER_BLOCK) if self.admit_after > 1 else 0
        nbytes = (16 + self.keep_strings) * self.capacity + 64 * blocks
        check_loaded_size(self.name, nbytes)
        device = least_loaded_server(nbytes) if on_servers() else "CPU:0"
        made = {
            "keys": (EMPTY, (self.capacity,), "int64"),
            "scores": (0, (self.capacity,), "int64"),
            "sketch": (0, (blocks, 64), "uint8"),
            "clock": (0, (2,), "int64"),
        }
        if self.keep_strings:
            made["strings"] = (0, (self.capacity, self.keep_strings), "uint8")
        self._state = {
            name: PlainWeight(self.name, first, shape, dtype, name, device)
            for name, (first, shape, dtype) in made.items()
        }
        self.built = True
        self.track_state()

    @property
    def initialized(self):
        """False only while Keras builds a model symbolically and has not created its variables yet."""
        return self.built and all(weight.initialized for weight in self._state.values())

    @property
    def keys(self):
        """The ids, an int64 `tf.Variable` `[capacity]`."""
        return self._state["keys"].value

    @property
    def strings(self):
        """The bytes of the strings, a uint8 `tf.Variable` `[capacity, keep_strings]`."""
        return self._state["strings"].value

    def _find(self, ids):
        """Return the slots of int64 ids, -1 where they have none."""
        if is_exporting():
            return stock_find(self.keys, ids)
        if not self.initialized:
            return tf.fill(tf.shape(ids), tf.constant(-1, tf.int64))
        return find(self.keys, ids)

    # Slots that change hands.

    def on_replaced(self, reset):
        """Register `reset(rows)`, called in the graph of a step for rows that are given to other ids.

        The vocabulary does not keep `reset` alive: it goes with the embedding that it belongs to.
        """
        self._resets.append(weakref.ref(reset))

    def _alive(self):
        return filter(None, [reset() for reset in self._resets])

    def _reset(self, slots):
        for reset in self._alive():
            reset(slots + self.first_row)

    def _update_all(self, flat, begins_step):
        """Return the slots of flat ids, which are counted over all replicas together; -1: none.

        Args:
            flat: list of the ids, int64 `[n]`, and of their bytes, uint8 `[n, keep_strings]`, if they are
                kept.
            begins_step: bool. False: the ids belong to the step of the last call.
        """
        replica = several_replicas()
        if replica is None:
            return self._update(flat, begins_step)

        def of_all(strategy, *flat):
            parts, hosts = [strategy.experimental_local_results(each) for each in flat], hosts_of(strategy)
            here = [tf.concat(each, 0) for each in parts]
            # Every host has a copy of the vocabulary, and does the same to it.
            route = AllGather(hosts, here[0])
            slots = self._update([_of_all_hosts(route, hosts, each) for each in here], begins_step)
            return tuple(tf.split(route.local(slots), [tf.size(part) for part in parts[0]]))

        return replica.merge_call(of_all, args=tuple(flat))[replica_index()]

    def _update(self, flat, begins_step):
        state = {name: weight.value for name, weight in self._state.items()}
        strings = state.pop("strings", None)
        slots, replaced = update(
            **state, ids=flat[0], admit_after=self.admit_after, evict=self.evict, begins_step=begins_step
        )
        if strings is not None:
            with colocated_with(strings.handle):
                kept = tf.squeeze(tf.where(slots >= 0), 1)
                strings.scatter_update(tf.IndexedSlices(tf.gather(flat[1], kept), tf.gather(slots, kept)))
        self._reset(replaced)
        return slots

    def _remove(self, numbers, unused_for):
        """Free slots, and return their ids.

        Args:
            numbers: None, or int64 ids `[m]`. Those without a slot are ignored.
            unused_for: None, or int, a number of steps.
        """
        if (numbers is None) == (unused_for is None):
            raise ValueError(
                f"One of `ids` and `unused_for` must be given to remove ids of {self.name!r}. "
                f"Received: ids={numbers!r}, unused_for={unused_for!r}"
            )
        keys, scores, clock = (self._state[name].value.numpy() for name in ("keys", "scores", "clock"))
        if numbers is not None:
            slots = np.unique(find(self.keys, numbers).numpy())
            slots = slots[slots >= 0]
        else:
            slots = np.flatnonzero((keys != EMPTY) & (clock[0] - (scores & _STEP_BITS) >= unused_for))
        removed = keys[slots]
        keys[slots], scores[slots] = EMPTY, 0
        self._state["keys"].assign(keys)
        self._state["scores"].assign(scores)
        if self.keep_strings and len(slots):
            nothing = tf.zeros([len(slots), self.keep_strings], tf.uint8)
            self.strings.scatter_update(tf.IndexedSlices(nothing, tf.constant(slots, tf.int64)))
        self._reset(tf.constant(slots, tf.int64))
        return removed

    # Saving, and another capacity.

    def saved_parts(self):
        nothing = [] if self.keep_strings else [NotSaved("strings", "keep_strings")]
        return [SavedVariables(self._state), *nothing]

    def load_own_variables(self, store):
        if may_have_other_rows() and "keys" in store and len(store["keys"]) != self.capacity:
            verify(store)
            self._take_anew(store)
        else:
            super().load_own_variables(store)

    def _take_anew(self, store):
        """Take the ids of a file of another capacity. Ids without a slot are counted again."""
        keys, scores = np.asarray(store["keys"]), np.asarray(store["scores"])
        keys, scores, source, target = _place_anew(keys, scores, self.capacity)
        self._state["keys"].assign(keys)
        self._state["scores"].assign(scores)
        self._state["clock"].assign([np.asarray(store["clock"])[0], 0])
        if self.keep_strings:
            strings = np.zeros((self.capacity, self.keep_strings), np.uint8)
            strings[target] = np.asarray(store["strings"])[source]
            self._state["strings"].assign(strings)
        self._moved = source, target

    def move_rows(self, capacity=None):
        """Move the rows of all tables to where the ids are that they belong to: see `kl.resize`.

        Args:
            capacity: None: in this vocabulary, which took the ids of another capacity. An int: where the ids
                will be in one of this capacity, which is smaller.
        """
        if capacity is not None:
            moved = _place_anew(self._state["keys"].numpy(), self._state["scores"].numpy(), capacity)[2:]
        else:
            moved, self._moved = self._moved, None
        if moved is not None:
            for reset in self._alive():
                reset.move(*(slots + self.first_row for slots in moved))


def _of_all_hosts(route, hosts, values):
    """Return the rows of all hosts. Bytes travel as int32, which all collectives have."""
    if values.dtype != tf.uint8 or hosts.is_alone:
        return route.forward(values)
    return tf.cast(route.forward(tf.cast(values, tf.int32)), tf.uint8)


def _place_anew(keys, scores, capacity):
    """Place ids in another number of slots, those of the highest scores first. The last ones may find none.

    Args:
        keys, scores: int64 arrays: see `update`.
        capacity: int, a multiple of 16.

    Returns:
        `(keys, scores, source, target)`, int64 arrays: of the new slots `[capacity]`, and the slots that the
        ids had and those that they have, `[m]`.
    """
    taken = np.flatnonzero(keys != EMPTY)
    source = taken[np.argsort(-scores[taken], kind="stable")]
    empty = np.full(capacity, EMPTY), np.zeros(capacity, np.int64)
    first = *empty, np.zeros((0, 64), np.uint8), np.zeros(2, np.int64)  # nothing is counted
    state = [plain_variable(value, trainable=False) for value in first]
    # In one step each new id gets a slot that is free, in their order, and none loses its own.
    target = update(*state, keys[source], admit_after=1, evict="lru").rows.numpy()
    source, target = source[target >= 0], target[target >= 0]
    of_slots = np.zeros(capacity, np.int64)
    of_slots[target] = scores[source]
    return state[0].numpy(), of_slots, source, target
