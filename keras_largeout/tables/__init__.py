"""A large parameter in parts: its rows, how they are looked up, saved, moved and exported.

Memory is made by the op `Largeout>EmptyTable`, on pages of 2 MiB where the system gives them: otherwise a
random row costs a page walk, and first touching a table a fault per 4 KiB. Initial values, saving and
loading go chunk by chunk (`chunks.py`), so no step holds a second copy.

Never slice, print, `.numpy()` or convert the `tf.Variable` of a table. After its first sparse update
every dense read copies it whole. `ShardVariable` overrides `numpy`, `assign` and `__repr__` for that
reason.
"""
