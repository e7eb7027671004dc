"""Warm starts: an idle, preloaded Python from which a replica is forked, instead of one that imports for seconds.

====================  =================================================================================================
``standby``           waits until the first job of its kind has its start behind it, then becomes the parent
``parent``            imports the framework, waits, and forks a runtime for each order
``child``             decides in each of the user's processes whether forking serves it, makes it look freshly started,
                      and ends it where it has used torch.distributed
``pool_files``        files and locks of the folder that all of them share with the executor
====================  =================================================================================================

The parent forks the runtime, which forks the user's processes as usual: the process tree, the limits, the view
and the exit are the same as without warm starts. Where forking does not fit, the process executes its command.
"""
