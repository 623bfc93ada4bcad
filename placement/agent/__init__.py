"""What runs on a GPU node: it starts, watches and stops jobs. No Django here."""
