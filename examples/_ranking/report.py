"""What the ranking example prints: scores, calibration, use of rows, and the table of several runs."""

from _ranking import measures
from _ranking.models import NAMES


def scores(labels, probabilities):
    """Return a dict of all that is said of predictions."""
    return {
        "auc": measures.auc(labels, probabilities),
        "log_loss": measures.log_loss(labels, probabilities),
        "entropy": measures.normalised_entropy(labels, probabilities),
        "calibration": measures.calibration(labels, probabilities)[0].ratio,
    }


def print_scores(rows, tested):
    """Print `rows`, a dict from names to what `scores` returned."""
    print(f"   {f'of {tested:,} rows':26}{'AUC':>8}{'log loss':>10}{'entropy':>9}{'calibration':>13}")
    for name, row in rows.items():
        numbers = f"{row['auc']:>8.4f}{row['log_loss']:>10.4f}{row['entropy']:>9.4f}"
        print(f"   {name:26}{numbers}{row['calibration']:>13.3f}")
    print("   entropy: log loss over that of the mean (normalised entropy)")
    print("   calibration: mean prediction over mean label")


def print_calibration(labels, probabilities):
    """Prints ten bins of equally many rows, and returns them."""
    _, bins = measures.calibration(labels, probabilities)
    print("\n   rows by prediction, a tenth of them a line")
    print(f"   {'rows':>10}{'predicted':>11}{'observed':>10}{'ratio':>8}")
    for part in bins:
        ratio = f"{part.ratio:>8.3f}" if part.observed else f"{'-':>8}"
        print(f"   {part.rows:>10,}{part.predicted:>11.4f}{part.observed:>10.4f}{ratio}")
    return bins


def print_row_use(features):
    """Print `features`, those of a `kl.callbacks.FeatureReport`."""
    print(f"   {'feature':9}{'rows':>12}{'ids':>14}{'different':>12}{'never touched':>15}{'top 10':>8}")
    for name, use in sorted(features.items(), key=lambda item: item[1].rows):
        sizes = f"{use.rows:>12,}{use.ids:>14,}{use.unique:>12,}{use.untouched:>15.1%}"
        print(f"   {name:9}{sizes}{sum(share for _, share in use.top):>8.1%}")
    print("   never touched: share of the rows that no id met")
    print("   top 10: share of all ids that the 10 most frequent rows have")


def run_name(model, stacking):
    return NAMES[model] + (", separate tables" if stacking == "none" else "")


def print_runs(results):
    """Print `results`, a list of what the runs of `ranking.py` found."""
    print("\nWhat the columns say:")
    print("   build     seconds of the processor for building the model, its tables included")
    print("   rows/s    rows trained per second of the clock; CPU: of the processor, all cores together")
    print("   memory    the most that the process had up to the end of the training")
    print("   entropy   log loss over that of the mean of the labels (normalised entropy)")
    print("   calibr.   mean prediction over mean label")
    if "best" in results[0]:
        print("   of best   AUC above a half, as a share of what the true probabilities have")
    head = f"{'build':>9}{'rows/s':>9}{'CPU':>9}{'memory':>10}{'AUC':>9}{'of best':>9}"
    print(f"\n{'model':26}{head}{'log loss':>10}{'entropy':>9}{'calibr.':>9}")
    for row in results:
        found = row["scores"]
        best = f"{(found['auc'] - 0.5) / (row['best']['auc'] - 0.5):.1%}" if "best" in row else ""
        speed = f"{row['build']:>7.1f} s{row['clock']:>9,.0f}{row['processor']:>9,.0f}"
        quality = f"{row['training'] / 2**30:>7.1f} GB{found['auc']:>9.4f}{best:>9}{found['log_loss']:>10.4f}"
        rest = f"{found['entropy']:>9.4f}{found['calibration']:>9.3f}"
        print(f"{run_name(row['model'], row['stacking']):26}{speed}{quality}{rest}")
