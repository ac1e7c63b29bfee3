"""In which order waiting requests are served: one policy a file, behind the interface of policy.py."""
