"""Dumps of stacks: written, parsed, and grouped by equal stack.

text        dumps as faulthandler writes them, made by Python; and the stack of an exception in the same format
parser      dumps parsed again
snapshot    the threads of this process, grouped by equal stack while Python can run
grouping    the activity of a thread, and equal stacks together
"""
