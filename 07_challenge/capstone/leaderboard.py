"""The local leaderboard: every valid run in a CSV, and the best of each name in a picture. Only runs of one setting are ranked against each other."""
import csv
import os
import time

FIELDS = "date name task ranks link cap_mib target rounds seconds reference_seconds score steps held_out_loss peak_mib host".split()
SETTING = ("task", "ranks", "link", "cap_mib", "target")
MOST = 25  # bars


def enter(board, entry):
    new = not board.exists()
    board.parent.mkdir(parents=True, exist_ok=True)
    with board.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(dict(date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), host=os.uname().nodename) | entry)


def ranked(board):
    """The best row of each name in each setting; settings one after the other, the best on top in each."""
    with board.open(newline="") as file:
        rows = list(csv.DictReader(file))
    best = {}
    for row in rows:
        key = (row["name"], *(row[field] for field in SETTING))
        if key not in best or float(row["score"]) > float(best[key]["score"]):
            best[key] = row
    return sorted(best.values(), key=lambda row: ([row[field] for field in SETTING], -float(row["score"])))


def draw(board):
    """Returns the picture's path, or None where matplotlib is missing."""
    try:
        from figures import style
    except ImportError:
        return None
    shown = ranked(board)[:MOST]
    figure, (ax,) = style.axes(1, width=6.5, height=0.9 + 0.3 * len(shown))
    colours = {}
    for place, row in enumerate(shown):
        colour = colours.setdefault(tuple(row[field] for field in SETTING), style.COLOURS[len(colours) % len(style.COLOURS)])
        ax.barh(place, float(row["score"]), 0.66, color=colour)
        ax.annotate(f"{float(row['score']):.2f}  ({float(row['seconds']):.2f} s)", (float(row["score"]), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    ax.axvline(1, color="#777777", linewidth=1, linestyle="--")
    ax.set_yticks(range(len(shown)), [f"{row['name']}, {row['task']}, {row['ranks']} ranks" + (f", {row['link']}" if row["link"] else "") + f", {float(row['cap_mib']):g} MiB" for row in shown])
    ax.set(xlabel="score (the reference's time over theirs; dashed: the reference)", xlim=(0, 1.3 * max(1.0, *(float(row["score"]) for row in shown))), ylim=(len(shown) - 0.4, -0.6))
    ax.grid(axis="y", visible=False)
    ax.set_title(f"Capstone, measured on {', '.join(sorted({row['host'] for row in shown}))}", fontsize=10)
    path = board.with_suffix(".png")
    figure.savefig(path, bbox_inches="tight")
    style.plt.close(figure)
    return path
