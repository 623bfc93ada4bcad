"""Starting, watching and stopping Jobs on a node. No Django in this folder."""
