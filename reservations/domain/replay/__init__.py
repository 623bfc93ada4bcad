"""What would a policy have done to these jobs? Replays a trace of real demand.

One pool of equal Gpus, gangs, an injected clock; the rules are those that serve the
site (fairshare.py, quota.py). ``trace`` reads, ``engine`` runs, ``orders`` says who is
next, ``measures`` sums up.
"""
