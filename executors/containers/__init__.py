"""The part that all container engines share. Pure: values in, values out; an engine's driver sends them.

=============  =======================================================================================================
``labels``     label keys of objects on an engine, and parsing labels into a :class:`ReplicaKey`
``names``      deterministic names
``paths``      fixed paths in the container, the entry, and which empty folders the engine must mount
``order_files``  the files of ``/trainmaster/order``
``exits``      from the exit record, or the engine's own exit where there is none, to a :class:`ReplicaExit`
=============  =======================================================================================================

How a container of a job looks, on every engine:

- entry (``paths.entry()``), as process 1, no init of the engine's before it; no working directory set by the engine;
- mounts ``RUNTIME`` (the runtime image's files, read-only), ``ORDER`` (``render_order``'s files, read-only and readable
  for the container's user), the scratch folders of ``paths.scratch_folders(order)``, and ``order.mounts``;
- no variables but what the image says: contracts and secrets are in the order's files;
- stopped by SIGTERM to process 1, best after ``exits.stop_mark`` was written to ``STOP_MARK``;
- its end read by ``exits.read_exit`` from ``EXIT_RECORD`` or the termination message.
"""
