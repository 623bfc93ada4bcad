"""The reference cases: nets and problems with answers that are known."""
