from diffeq_former.config.schema import *
