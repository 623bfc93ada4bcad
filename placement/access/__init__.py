"""The ways to the nodes of a reservation: streams to services such as ssh."""
