"""Networks divided among ranks by their layers. Begin at pipeline.py.

pipeline.py    what users call: a step
order.py       the order of the micro-batches: GPipe, 1F1B
stage.py       this rank's layers: forward and backward of a micro-batch
wire.py        activations and gradients to and from the next stage
replicas.py    the mean of the gradients over the replicas of a stage
division.py    which rank has which layers
"""
