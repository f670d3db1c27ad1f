"""Every figure that result files can give: one module per family, each with a function that takes rows and yields, for each figure, a call that draws it.

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
import functools

from figures import bandwidth, memory, pipeline, predictions, scaling, strategies, style, training

FAMILIES = {"scaling": scaling.figures, "step": scaling.step_figures, "bandwidth": bandwidth.figures, "prediction": predictions.figures,
            "bubble": pipeline.figures, "memory": memory.figures, "ladder": training.ladder_figures, "precision": training.precision_figures,
            "strategies": strategies.figures}


def make(rows, families=None):
    """Yields (family, figure) for all that the rows can give; (family, exception) where drawing failed, so that the others still come.

    Whatever goes wrong is caught: a picture that we cannot draw must not cost the reader those that we can.
    """
    for family, plan in FAMILIES.items():
        if families and family not in families:
            continue
        try:
            planned = list(plan(rows))
        except Exception as error:
            planned = [functools.partial(fail, error)]
        for draw in planned:
            try:
                yield family, draw()
            except Exception as error:
                style.plt.close("all")  # what was begun; figures that are done live on without pyplot
                yield family, error


def fail(error):
    raise error
