"""What the example of collaborative filtering prints: tables of scores and of losses, recommendations."""

import numpy as np
from _filtering.measures import NDCG, RECALL, best
from _filtering.pairs import items_of
from _next_item.sequences import padded
from _report import stage

POPULAR = "most popular"


def print_scores(scores, users, items):
    """Print `scores`, a dict from names to what a `Measure` returned."""
    print(f"\nThe test: {users:,} users, all {items:,} items but those known of the user, in percent")
    print(f"\n{'':26}{RECALL:>11}{NDCG:>11}{'ms/step':>11}")
    for name, row in scores.items():
        time = f"{row['milliseconds']:>11.1f}" if "milliseconds" in row else ""
        print(f"{name:26}{100 * row[RECALL]:>11.2f}{100 * row[NDCG]:>11.2f}{time}")
    print("\nRecall@20: the share of a user's held-out items among the 20 best. NDCG@20: how far in front")
    print("they are. The most popular items are the same for all users. The factorisation has the same two")
    print(
        "tables, pairs and steps as the neural model, and no hidden layers: their weights are all it lacks."
    )


def print_losses(losses):
    """Return a table of the losses of each step, by storage.

    Args:
        losses: dict from names of storages to lists of float.

    Returns:
        Whether they are the same, to the bit.
    """
    print(f"   {'step':>6}" + "".join(f"{name:>24}" for name in losses))
    for step, row in enumerate(zip(*losses.values()), 1):
        print(f"   {step:>6}" + "".join(f"{loss.hex():>24}" for loss in row))
    first, *others = losses.values()
    same = all(other == first for other in others)
    print("   the same, to the last bit" if same else "   NOT the same")
    return same


def show_recommendations(pairs, scores, seed, users=4, shown=5):
    """Prints the best items for some users of the test, where items have names.

    Args:
        scores: a function from users to `[users, items]`.
    """
    if pairs.item_names is None:
        return
    with stage("What is recommended? (the best first; * where it was held out)"):
        chosen = pairs.some_users("test", users, seed).astype(np.int32)
        held_out = items_of(pairs.test, chosen)
        known = [np.concatenate(k) for k in zip(*(items_of(p, chosen) for p in (pairs.train, pairs.valid)))]
        found = best(scores(chosen), padded(known, max(map(len, known)))).numpy()
        for user, has, wanted, ids in zip(chosen, known, held_out, found):
            print(f"   {pairs.user_names[user]}")
            print("       calls " + "   ".join(pairs.item_names[i] for i in has[:6]))
            said = (pairs.item_names[i] + "*" * int(i in wanted) for i in ids[:shown])
            print("       ->    " + "   ".join(said))
