"""Building, indexing and searching on Ray (extra `ray`), and what a memory of some size will take."""

from nearlm.cluster.session import AUTO, ClusterError, ClusterOptions, SearchOn, ServeOptions, joined
