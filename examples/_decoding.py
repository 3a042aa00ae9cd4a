"""How a text goes on: its best continuations, by beam search, or one that is sampled.

Word 0 is padding, which no continuation has: the model would not see what comes after it.
"""

import numpy as np


def _window(words, steps):
    """Return the last of the words, int32 `[steps]`, filled up with 0 at the end; and how many there are."""
    words = words[-steps:]
    return np.pad(np.array(words, np.int32), (0, steps - len(words))), len(words)


def _words(context):
    return np.asarray(context)[: np.count_nonzero(context)].tolist()


def beam_search(predictor, context, length, beams=4, end=None):
    """Return the continuations with the largest probability that a search with so many beams finds.

    Each step asks the model for the best next words of every beam, and keeps the best of all. No step
    looks at more than `beams * k` words, however many the head has.

    Args:
        predictor: `head.predictor(model, k=k, position="last")`, `k >= beams`. Scores are log-probabilities.
        context: int32 `[steps]`: the words before, as many as the model reads; 0 fills it up at its end.
        length: words to add, at most.
        beams: continuations that are kept at every step.
        end: the word after which a continuation is complete.

    Returns:
        `[(log-probability, [word, ...]), ...]`, `beams` of them, the best first.
    """
    steps, known = len(context), _words(context)
    found, complete = [(0.0, [])], []
    for _ in range(length):
        beginnings = [_window(known + words, steps)[0] for _, words in found]
        windows = np.resize(beginnings, [beams, steps])  # one shape: the model is traced once
        answer = predictor.predict(windows, verbose=0)
        longer = [
            (score + float(more), [*words, int(word)])
            for (score, words), scores, ids in zip(found, answer["scores"], answer["ids"])
            for more, word in zip(scores, ids)
            if word != 0
        ]
        best = sorted(longer + complete, key=lambda beam: -beam[0])[:beams]
        complete = [beam for beam in best if beam[1][-1] == end]
        found = [beam for beam in best if beam[1][-1] != end]
        if not found:
            break
    return sorted(found + complete, key=lambda beam: -beam[0])


def sample_text(model, head, context, length, end=None, **how):
    """Return one continuation, every word of it drawn from what the model says.

    Args:
        model: tokens `[batch, steps]` -> hidden vectors `[batch, steps, units]` of `head`.
        context, length, end: as in `beam_search`.
        how: `temperature`, `top_k`, `top_p`, `seed` of `head.sample`.

    Returns:
        `[word, ...]`.
    """
    steps, known, words = len(context), _words(context), []
    while len(words) < length and (not words or words[-1] != end):
        window, there = _window(known + words, steps)
        hidden = model.predict(window[None], verbose=0)[:, there - 1]
        drawn = (int(head.sample(hidden, **how)[0]) for _ in range(20))
        word = next((word for word in drawn if word != 0), None)
        if word is None:  # the model expects nothing else
            break
        words.append(word)
    return words
