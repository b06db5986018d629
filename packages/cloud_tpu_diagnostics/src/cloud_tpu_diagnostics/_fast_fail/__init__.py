"""Fast-fail: when one process of a job fails, all others end at once, with the first cause recorded.

The companions of a job form a star: that of process 0 is the hub, the others connect to it. Each reports the end of its
job; the hub decides which was the first cause, and every companion then ends its own job.

messages   lines of JSON and their codes: pure
decision   from the ends and states of all processes to the first cause: pure, with the time as an argument
reports    what a companion reports to the hub, as values of JSON and back: pure
hub        the hub's connections
member     the connection of another companion
meeting    where the hub is: by a file of a shared folder
star       the star as a companion sees it: hub or member, by messages of its job
status     a file that shows the first cause to `run`, which records the end of the job
"""
