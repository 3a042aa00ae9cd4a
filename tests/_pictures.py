"""What every picture must be: nothing is cut, nothing is over something else, no number is missing."""

import itertools


def check_legible(figure):
    """Lays a figure out and looks at the places of its texts, bars, points and legends."""
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    texts = [*figure.texts, *filter(None, [figure._suptitle])]
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            texts += _check_ticks(axis)
        _check_inside(axes)
    legends = [*figure.legends, *filter(None, [axes.get_legend() for axes in figure.axes])]
    for text in itertools.chain(texts, *(legend.get_texts() for legend in legends)):
        box = text.get_window_extent()
        inside = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        assert inside or not text.get_text(), f"cut: {text.get_text()!r}"
    for legend in legends:
        assert figure.axes and legend.get_texts()
        for axes in figure.axes:
            assert not legend.get_window_extent().overlaps(axes.get_window_extent()), (
                "a legend hides something"
            )
        for text in texts:
            assert not legend.get_window_extent().overlaps(text.get_window_extent()) or not text.get_text()


def tick_labels(axis):
    """The numbers that stand at an axis, as text."""
    return [label.get_text() for label in _shown(axis)]


def _shown(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels())
    return [label for place, label in ticks if low <= place <= high and label.get_visible()]


def _check_ticks(axis):
    """Labels do not overlap, and are not all the same number."""
    labels = [label for label in _shown(axis) if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    for first, second in itertools.combinations(range(len(labels)), 2):
        assert not boxes[first].overlaps(boxes[second]), tick_labels(axis)
        assert labels[first].get_text() != labels[second].get_text(), tick_labels(axis)
    return labels


def _check_inside(axes):
    """Bars and points end before the edges of their axes."""
    right, top = max(axes.get_xlim()), max(axes.get_ylim())
    for bar in axes.patches:
        assert bar.get_x() + bar.get_width() < right and bar.get_y() + bar.get_height() < top, (
            axes.get_title()
        )
    for line in axes.lines:
        if line.get_clip_on() and line.get_marker() not in ("None", None, ""):
            marked = axes.get_window_extent().padded(-0.5 * line.get_markersize())
            for point in axes.transData.transform(line.get_xydata()):
                assert marked.contains(*point), f"on the edge: {line.get_label()!r}"
