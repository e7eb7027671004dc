# The same words as `python3 dev.py`, for those who have make.
.PHONY: install demo test up web lint bench openapi lock images frameworks sbom bundle
install demo test up web lint openapi lock images frameworks sbom bundle:
	@python3 dev.py $@ $(ARGS)
bench:
	@python3 dev.py bench $(NAME) $(ARGS)
