"""Every figure that result files can give: one module per family, each with a function that takes rows and yields Figures.

Which rows make which figure (columns of DESIGN.md):
  scaling      scaling = strong or weak, with median_s               x ranks, one line per variant; workload names the model
  step split   data_wait_s, compute_s, exposed_comm_s, optimizer_s   a stack per variant and number of ranks
  bandwidth    bytes and busbw_GBs                                   workload is the operation, variant the algorithm or the rival
  prediction   predicted, measured and unit                          all but the bubbles
  bubble       measured (and predicted) with a unit "bubble ..."     variant is the schedule; "p=4 m=8 v=2" in workload or unit: stages, microbatches, chunks
  memory       peak_bytes                                            a bar per variant and number of ranks
  ladder       lesson *_ladder with rate and rate_unit               variant is the rung, in the order of the file
  precision    loss, of two or more dtypes                           over iterations if there are several, else one dot each
  strategies   variant is a strategy (ddp, zero3, tp2+dp2, pp4 ...)  median_s, peak_bytes, sent_bytes, loss on equal workload, batch and ranks
"""
from figures import bandwidth, memory, pipeline, predictions, scaling, strategies, training

FAMILIES = {"scaling": scaling.figures, "step": scaling.step_figures, "bandwidth": bandwidth.figures, "prediction": predictions.figures,
            "bubble": pipeline.figures, "memory": memory.figures, "ladder": training.ladder_figures, "precision": training.precision_figures,
            "strategies": strategies.figures}


def make(rows, families=None):
    """Yields (family, figure) for all that the rows can give; (family, exception) where drawing failed, so that the others still come."""
    for family, draw in FAMILIES.items():
        if families and family not in families:
            continue
        drawn = draw(rows)
        while True:
            try:
                yield family, next(drawn)
            except StopIteration:
                break
            except (ValueError, ArithmeticError, KeyError) as error:
                yield family, error
                break
