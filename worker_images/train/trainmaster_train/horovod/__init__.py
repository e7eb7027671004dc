"""Horovod's API without Horovod: ``import trainmaster_train.horovod.torch as hvd`` instead of ``import horovod.torch as hvd``.

``horovod.torch`` stands on torch.distributed; ``horovod.tensorflow`` and ``horovod.keras`` need nothing but numpy.
docs/howto/horovod.md tells what is the same and what differs.
"""
