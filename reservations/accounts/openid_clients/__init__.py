"""Services that people sign in to with the portal, and what people agreed to give."""
