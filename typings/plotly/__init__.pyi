# The one function of plotly that is used.
